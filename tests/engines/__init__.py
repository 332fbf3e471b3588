"""Real servers that tests start for themselves: PostgreSQL and a mail server, on loopback, gone when the tests are."""

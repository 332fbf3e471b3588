"""Real servers and engines that tests start for themselves, on loopback, gone when the tests are."""

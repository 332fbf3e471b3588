"""Who is told of what: subscriptions, notices and digests."""

"""Ways to tell somebody: webhooks and mail, behind the port `Notifier`."""

"""The outside world behind the ports: journals, notifiers, the files of settings, and the token of the local user."""

"""A forum with private messages, polls and moderators, and tasks in it: django-spirit on SQLite, started on loopback."""

"""A shop with its administration, and tasks in it: django-oscar on SQLite, started on loopback."""

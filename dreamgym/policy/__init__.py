"""Policies: an agent over a language model, and the templates in which it reads and writes."""

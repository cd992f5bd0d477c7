"""What programs of bench/ share: their options, isolated processes, forced text, and peers."""

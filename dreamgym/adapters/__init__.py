"""dreamgym's environments in the clothes that other people's programs expect."""

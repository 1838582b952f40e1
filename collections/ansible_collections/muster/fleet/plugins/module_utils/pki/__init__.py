"""Keys and certificates: what is to be issued, issuing it, replacing a CA."""

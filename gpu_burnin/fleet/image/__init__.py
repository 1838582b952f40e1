"""Machines that boot from the fleet's image and enrol themselves: tokens, what they say, and who is let in."""

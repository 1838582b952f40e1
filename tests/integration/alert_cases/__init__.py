"""For each alert its fault, and the state beside it that is none: a module for each file of rules, of the same name."""

"""A mirror of the programs that hosts fetch: downloaded, or built from published Go modules, into the user's cache."""

"""`make dist`: everything that a release has, the same bytes from the same commit and the same packages."""

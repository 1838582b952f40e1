"""The cases: each fault under the real checks and the real verdict, and the campaign's own tests."""

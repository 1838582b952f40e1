"""The one error of a release's build."""


class DistError(Exception):
    """A release that cannot be built or is not what was signed; the message is one sentence with what to do."""

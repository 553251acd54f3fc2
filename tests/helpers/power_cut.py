"""A power cut, for tests of what goes on after one."""


class PowerCutError(BaseException):
    """Ends a process as a power cut does: nothing catches it or records it."""

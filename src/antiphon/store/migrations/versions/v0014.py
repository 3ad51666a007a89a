"""Consecutive deltas share a line of the log: older programs, which cannot read it, are kept out."""

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Nothing changes in what is stored: a line for each event can be read as before."""

"""System One: decisions in the form of Jev and its clients."""

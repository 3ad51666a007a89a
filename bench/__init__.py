"""What Antiphon itself costs, beside any model: see README.md."""

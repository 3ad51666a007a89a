"""How each model family writes: one data file per family, assignments only."""

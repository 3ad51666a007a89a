"""The vocabulary that every other package speaks. Imports nothing of ours."""

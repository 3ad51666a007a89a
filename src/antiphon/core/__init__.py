"""The vocabulary that all other packages use. It imports none of them."""

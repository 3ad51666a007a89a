"""What `web_search` is made of: searching, fetching with care, and pages as numbered lines."""

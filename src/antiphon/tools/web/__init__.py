"""The parts of `web_search`: search engines, a restricted HTTP client, and pages as numbered lines."""

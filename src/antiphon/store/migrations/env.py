"""Alembic's way in: migrates the connection that `migrate.py` put into the configuration."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()

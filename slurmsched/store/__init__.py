"""The database between rounds. Imports nothing here: `synsched status` uses this package and must start fast."""

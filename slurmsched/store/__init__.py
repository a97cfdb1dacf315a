"""What is remembered between rounds. Imports nothing by itself: `synsched status` reads here and must start fast."""

#!/bin/sh
# The dead-man's switch, for cron: gives every job back to Slurm once the daemon's last sign of life is too old.
# Does nothing while the daemon lives. SYNSCHED names the command where it is not on PATH.
exec "${SYNSCHED:-synsched}" release --if-stale

"""What an installation may choose. One definition drives validation, the shipped file and the reference page."""

from slurmsched.settings.definition import (
    Checkpoint,
    Cluster,
    Daemon,
    Guards,
    Hook,
    Manage,
    Mode,
    Nodes,
    Policy,
    Reports,
    Rounds,
    Settings,
    Storage,
    Tickets,
)
from slurmsched.settings.loading import DEFAULT_FILE, VARIABLE, Loaded, SettingsError, load, load_file, settings_file

__all__ = [
    "DEFAULT_FILE",
    "VARIABLE",
    "Checkpoint",
    "Cluster",
    "Daemon",
    "Guards",
    "Hook",
    "Loaded",
    "Manage",
    "Mode",
    "Nodes",
    "Policy",
    "Reports",
    "Rounds",
    "Settings",
    "SettingsError",
    "Storage",
    "Tickets",
    "load",
    "load_file",
    "settings_file",
]

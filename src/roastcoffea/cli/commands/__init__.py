"""The commands: one module each, with its name, and with the command as `command`."""

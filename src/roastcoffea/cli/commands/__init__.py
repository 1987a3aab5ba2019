"""The commands: a module for each, whose name is the command's and which has it as `command`."""

"""Looks after the box's own threads: `rules` decides, `live` looks and acts, `systemd` tells the service manager."""

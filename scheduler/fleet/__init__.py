"""What boxes and a fleet say to each other: values and their JSON, and nothing else. `edge` and `cluster` meet here only."""

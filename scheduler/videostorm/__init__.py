"""VideoStorm: which knobs each query runs with under its share, from quality-demand profiles and lag (clock of seconds)."""

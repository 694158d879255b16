"""Which box watches a camera, who stands by, when one moves, and how: VideoStorm's scores over ESCHER's constraints. Pure."""

"""Staged rollouts: a model version goes to one box, then to a tenth, a half and all of them, and stops by itself when it does harm.

Pure: `rules.advance` takes what the controller knows and gives back the rollouts of the next moment and what to offer to whom; what the
owner wishes is a `wishes.RolloutWish`, and `wishes.apply` carries it out. (Nothing is imported here: `cluster.types` needs
`cluster.rollouts.types`, and the rules need `cluster.types`.)
"""

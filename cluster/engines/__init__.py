"""The engines that run a fleet's tasks, behind one seam (`cluster.engines.base`)."""

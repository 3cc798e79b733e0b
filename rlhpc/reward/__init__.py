"""From what happened in an episode to named floats, and from those to one number."""

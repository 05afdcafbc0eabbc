"""Speed: `replay` and `training` beside peers, others our own. `commits` compares numbers."""

"""Speed, measured: `replay` and `training` beside peers; `methods`, `refer` and `host` our own."""

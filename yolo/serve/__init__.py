"""A small web service: a page to try a model on, and an HTTP endpoint for programs."""

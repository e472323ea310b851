"""The Hydra groups; in an installation this folder is the package yolo.configs."""

"""The tasks, one per subpackage: `task.py` has the task and its module; larger parts have files of their own."""

"""One line in the loop you have: schedules attached to the optimizers of the frameworks."""

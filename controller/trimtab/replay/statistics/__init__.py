"""How sure a figure is: 95% intervals by block bootstrap."""

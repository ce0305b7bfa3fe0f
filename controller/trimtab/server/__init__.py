"""The daemon: streams of engines, orders of operators, figures for the monitoring. One event loop owns it all."""

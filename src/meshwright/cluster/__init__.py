"""What it runs on: devices, links, pools."""

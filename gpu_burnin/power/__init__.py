"""The power of machines, by Redfish through their BMCs or by a program of yours. An order is believed when it shows."""

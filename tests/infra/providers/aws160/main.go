// The newest AWS provider that is to be had as a Go module (1.60.0 of 2019), served to a terraform of today: its own main
// speaks an older plugin protocol, the plugin package of terraform 0.12 speaks version 5.
package main

import (
	"github.com/hashicorp/terraform/plugin"
	"github.com/terraform-providers/terraform-provider-aws/aws"
)

func main() {
	plugin.Serve(&plugin.ServeOpts{ProviderFunc: aws.Provider})
}

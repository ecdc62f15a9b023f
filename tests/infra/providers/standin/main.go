// A stand-in for the AWS provider: it serves the schema of the real one, so that names, types and wiring are checked as with
// the real one, and makes up whatever AWS would answer. It knows nothing else about AWS, and reaches nothing.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tfprotov5/tf5server"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

//go:embed schema.json.gz
var packed []byte

type attr struct {
	Type                         json.RawMessage
	Optional, Required, Computed bool
}
type block struct {
	Attributes map[string]attr
	BlockTypes map[string]struct {
		NestingMode string `json:"nesting_mode"`
		Min         int64  `json:"min_items"`
		Max         int64  `json:"max_items"`
		Block       block
	} `json:"block_types"`
}
type all struct{ Resource, Data, Provider map[string]block }

func typ(raw json.RawMessage) tftypes.Type {
	t, err := tftypes.ParseJSONType(raw) //nolint
	if err != nil {
		panic(err)
	}
	return t
}
func conv(b block) *tfprotov5.SchemaBlock {
	out := &tfprotov5.SchemaBlock{}
	for _, n := range keys(b.Attributes) {
		a := b.Attributes[n]
		out.Attributes = append(out.Attributes, &tfprotov5.SchemaAttribute{Name: n, Type: typ(a.Type), Optional: a.Optional, Required: a.Required, Computed: a.Computed})
	}
	for _, n := range keys(b.BlockTypes) {
		t := b.BlockTypes[n]
		mode := map[string]tfprotov5.SchemaNestedBlockNestingMode{"list": tfprotov5.SchemaNestedBlockNestingModeList, "set": tfprotov5.SchemaNestedBlockNestingModeSet, "single": tfprotov5.SchemaNestedBlockNestingModeSingle, "map": tfprotov5.SchemaNestedBlockNestingModeMap}[t.NestingMode]
		if t.NestingMode == "single" {
			t.Min, t.Max = 0, 0
		}
		out.BlockTypes = append(out.BlockTypes, &tfprotov5.SchemaNestedBlock{TypeName: n, Nesting: mode, MinItems: t.Min, MaxItems: t.Max, Block: conv(t.Block)})
	}
	return out
}
func keys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
func schemas(m map[string]block) map[string]*tfprotov5.Schema {
	out := map[string]*tfprotov5.Schema{}
	for n, b := range m {
		out[n] = &tfprotov5.Schema{Block: conv(b)}
	}
	return out
}

type server struct {
	tfprotov5.ProviderServer // what is not written below is not called
	res, data                map[string]*tfprotov5.Schema
	prov                     *tfprotov5.Schema
}

func (s *server) GetMetadata(context.Context, *tfprotov5.GetMetadataRequest) (*tfprotov5.GetMetadataResponse, error) {
	r := &tfprotov5.GetMetadataResponse{ServerCapabilities: &tfprotov5.ServerCapabilities{GetProviderSchemaOptional: true}}
	for n := range s.res {
		r.Resources = append(r.Resources, tfprotov5.ResourceMetadata{TypeName: n})
	}
	for n := range s.data {
		r.DataSources = append(r.DataSources, tfprotov5.DataSourceMetadata{TypeName: n})
	}
	return r, nil
}
func (s *server) GetProviderSchema(context.Context, *tfprotov5.GetProviderSchemaRequest) (*tfprotov5.GetProviderSchemaResponse, error) {
	return &tfprotov5.GetProviderSchemaResponse{Provider: s.prov, ResourceSchemas: s.res, DataSourceSchemas: s.data, ServerCapabilities: &tfprotov5.ServerCapabilities{GetProviderSchemaOptional: true}}, nil
}
func (s *server) PrepareProviderConfig(_ context.Context, r *tfprotov5.PrepareProviderConfigRequest) (*tfprotov5.PrepareProviderConfigResponse, error) {
	return &tfprotov5.PrepareProviderConfigResponse{PreparedConfig: r.Config}, nil
}
func (s *server) ConfigureProvider(context.Context, *tfprotov5.ConfigureProviderRequest) (*tfprotov5.ConfigureProviderResponse, error) {
	return &tfprotov5.ConfigureProviderResponse{}, nil
}
func (s *server) StopProvider(context.Context, *tfprotov5.StopProviderRequest) (*tfprotov5.StopProviderResponse, error) {
	return &tfprotov5.StopProviderResponse{}, nil
}
func (s *server) ValidateResourceTypeConfig(_ context.Context, r *tfprotov5.ValidateResourceTypeConfigRequest) (*tfprotov5.ValidateResourceTypeConfigResponse, error) {
	out := &tfprotov5.ValidateResourceTypeConfigResponse{}
	_, err := each(s.res[r.TypeName], r.Config, func(a *tfprotov5.SchemaAttribute, v tftypes.Value) tftypes.Value {
		if a.Computed && !a.Optional && !v.IsNull() {
			out.Diagnostics = append(out.Diagnostics, &tfprotov5.Diagnostic{Severity: tfprotov5.DiagnosticSeverityError, Summary: "Read-only argument", Detail: a.Name + " is read-only", Attribute: tftypes.NewAttributePath().WithAttributeName(a.Name)})
		}
		return v
	})
	return out, err
}
func (s *server) ValidateDataSourceConfig(context.Context, *tfprotov5.ValidateDataSourceConfigRequest) (*tfprotov5.ValidateDataSourceConfigResponse, error) {
	return &tfprotov5.ValidateDataSourceConfigResponse{}, nil
}
func (s *server) UpgradeResourceState(_ context.Context, r *tfprotov5.UpgradeResourceStateRequest) (*tfprotov5.UpgradeResourceStateResponse, error) {
	t := s.res[r.TypeName].ValueType()
	v, err := r.RawState.UnmarshalWithOpts(t, tfprotov5.UnmarshalOpts{ValueFromJSONOpts: tftypes.ValueFromJSONOpts{IgnoreUndefinedAttributes: true}})
	if err != nil {
		return nil, err
	}
	d, err := tfprotov5.NewDynamicValue(t, v)
	return &tfprotov5.UpgradeResourceStateResponse{UpgradedState: &d}, err
}
func (s *server) ReadResource(_ context.Context, r *tfprotov5.ReadResourceRequest) (*tfprotov5.ReadResourceResponse, error) {
	return &tfprotov5.ReadResourceResponse{NewState: r.CurrentState, Private: r.Private}, nil
}

// each rewrites every top-level attribute of a value.
func each(sc *tfprotov5.Schema, d *tfprotov5.DynamicValue, f func(a *tfprotov5.SchemaAttribute, v tftypes.Value) tftypes.Value) (*tfprotov5.DynamicValue, error) {
	t := sc.ValueType()
	v, err := d.Unmarshal(t)
	if err != nil || v.IsNull() {
		return d, err
	}
	m := map[string]tftypes.Value{}
	if err := v.As(&m); err != nil {
		return nil, err
	}
	for _, a := range sc.Block.Attributes {
		m[a.Name] = f(a, m[a.Name])
	}
	out, err := tfprotov5.NewDynamicValue(t, tftypes.NewValue(t, m))
	return &out, err
}
func (s *server) PlanResourceChange(_ context.Context, r *tfprotov5.PlanResourceChangeRequest) (*tfprotov5.PlanResourceChangeResponse, error) {
	sc := s.res[r.TypeName]
	d, err := each(sc, r.ProposedNewState, func(a *tfprotov5.SchemaAttribute, v tftypes.Value) tftypes.Value {
		if a.Computed && v.IsKnown() && v.IsNull() {
			return tftypes.NewValue(a.Type, tftypes.UnknownValue)
		}
		return v
	})
	return &tfprotov5.PlanResourceChangeResponse{PlannedState: d, PlannedPrivate: r.PriorPrivate, UnsafeToUseLegacyTypeSystem: true}, err
}

var count int

func fake(kind string) func(a *tfprotov5.SchemaAttribute, v tftypes.Value) tftypes.Value {
	count++
	n := count
	return func(a *tfprotov5.SchemaAttribute, v tftypes.Value) tftypes.Value {
		if v.IsFullyKnown() && !(a.Computed && !a.Optional && v.IsNull()) {
			return v
		}
		switch {
		case a.Type.Is(tftypes.String) && (a.Name == "arn" || strings.HasSuffix(a.Name, "_arn")):
			return tftypes.NewValue(a.Type, fmt.Sprintf("arn:aws:schema-only:us-east-1:000000000000:%s/%d", kind, n))
		case a.Type.Is(tftypes.String):
			return tftypes.NewValue(a.Type, fmt.Sprintf("%s-%s-%d", strings.TrimPrefix(kind, "aws_"), a.Name, n))
		case a.Type.Is(tftypes.Bool):
			return tftypes.NewValue(a.Type, false)
		case a.Type.Is(tftypes.Number):
			return tftypes.NewValue(a.Type, 0)
		}
		switch a.Type.(type) {
		case tftypes.List, tftypes.Set:
			return tftypes.NewValue(a.Type, []tftypes.Value{})
		case tftypes.Map:
			return tftypes.NewValue(a.Type, map[string]tftypes.Value{})
		}
		return tftypes.NewValue(a.Type, nil)
	}
}
func (s *server) ApplyResourceChange(_ context.Context, r *tfprotov5.ApplyResourceChangeRequest) (*tfprotov5.ApplyResourceChangeResponse, error) {
	d, err := each(s.res[r.TypeName], r.PlannedState, fake(r.TypeName))
	return &tfprotov5.ApplyResourceChangeResponse{NewState: d, Private: r.PlannedPrivate, UnsafeToUseLegacyTypeSystem: true}, err
}
func (s *server) ReadDataSource(_ context.Context, r *tfprotov5.ReadDataSourceRequest) (*tfprotov5.ReadDataSourceResponse, error) {
	d, err := each(s.data[r.TypeName], r.Config, fake("data_"+r.TypeName))
	return &tfprotov5.ReadDataSourceResponse{State: d}, err
}

func main() {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		panic(err)
	}
	var a all
	if err := json.NewDecoder(z).Decode(&a); err != nil {
		panic(err)
	}
	s := &server{res: schemas(a.Resource), data: schemas(a.Data), prov: schemas(a.Provider)["aws"]}
	if err := tf5server.Serve("registry.terraform.io/hashicorp/aws", func() tfprotov5.ProviderServer { return s }); err != nil {
		panic(err)
	}
}
